"""What callers give: checked, and in the form that features take."""

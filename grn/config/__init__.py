"""What a run can set: schema.py has every field and its default, files.py reads and writes
configurations.
"""

"""Progress lines are dropped where they would follow each other too closely."""

from grn.messages import at_most_every


def test_lines_are_dropped_until_the_time_has_passed():
    lines = []
    seldom, always = at_most_every(3600, lines.append), at_most_every(-1, lines.append)
    for number in range(3):
        seldom(f"seldom {number}")
        always(f"always {number}")
    assert lines == ["always 0", "always 1", "always 2"]

"""Numbers that users hand in: accepted when they are integers, refused by name and value when not."""

from __future__ import annotations

from operator import index


def whole_number(name: str, value: object) -> int:
    """`value` as an int. TypeError for what is no integer: 1.5, "4", None, and also True.

    Integers of other libraries (numpy.int64) are welcome and come back as plain ints.
    """
    if type(value) is int:  # nearly always
        return value
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}; it must be an integer")
    return int(index(value))

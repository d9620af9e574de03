"""Groups of the classic protocol: members agree among themselves, their leader makes the plan."""

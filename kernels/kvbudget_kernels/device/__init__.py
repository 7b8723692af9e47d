"""Code that Triton compiles for a GPU. It is no Python to a type checker, so the modules above carry the contracts.

Conventions: strides are in elements and become 64-bit before they meet a page id; work is on grid axis 0 only; rows of
a query tile are ``row = token * G + head in its group``; scores are in base 2 inside; nothing is allocated.
"""

"""Triton kernels over the paged KV cache, their torch reference, and what builds and tunes them.

``reference`` is the specification; ``device`` holds what runs on the GPU; every other module is the typed way in.
"""

"""What the end-to-end tests and the demo share: a handle on the kind cluster, objects, waiting, dumps."""

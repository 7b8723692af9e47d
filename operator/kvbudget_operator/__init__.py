"""The kvbudget operator: kopf watches, a work queue of our own, server-side apply; decisions come from `kvbudget`."""

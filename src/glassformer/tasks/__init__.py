"""What a model learns and is then used for: one file a task, one registry, and protocols for what some can do."""

"""Programs around the core: the command line, pages, server, other formats, doctor and course.

No room outside of this folder imports from it, and a test runs the core without it.
"""

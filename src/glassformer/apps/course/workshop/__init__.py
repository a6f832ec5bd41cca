"""The workshop of the course: stubs that the reader fills, and a check that names the mistake."""

"""HTTP server for models: the application, its worker, and the inspector page."""

"""The service over HTTP; the only room that knows a web framework."""

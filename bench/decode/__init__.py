"""JPEG decode on the CPU: what this service's costs beside the libraries' bare one, and what smaller decodes change."""

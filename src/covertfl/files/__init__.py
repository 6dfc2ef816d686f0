"""How files are read and written.

- `atomic`: writing a file completely or not at all (`write_atomically`)
- `toml`: reading text and TOML, and quoting what is wrong in it
"""

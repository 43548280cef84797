"""A Report rendered for people (HTML, Markdown) and for machines (JSON, JUnit)."""

"""Documents that people attach: read to pages of text in the sandbox, and cut to the passages that suit a question."""

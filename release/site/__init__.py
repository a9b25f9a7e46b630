"""The documentation as a site: `make docs` builds it into build/site with MkDocs (mkdocs.yml).

`hooks` is what MkDocs calls. `pages` turns the repository's Markdown into pages of the site. `reference` writes the
tables of settings, options, commands and errors from the code.
"""

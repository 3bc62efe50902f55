# ./build.sh docs            write the generated pages, and HTML of all pages, with a search, into build/docs
#
# The generated pages are docs/ops.md, docs/api.md, docs/errors.md and those of docs/api and docs/errors.
# docs/README.md is the menu of the HTML. Begin with build/docs/index.html; no server is needed.
# MkDocs makes it: build/docs_venv, from PyPI, once.

main() {
    needs python
    for page in ops_doc api_doc errors_doc; do python3 tools/generate/$page; done
    setup_docs
    python3 tools/generate/site
    # A theme says what its authors plan; -q leaves warnings.
    NO_MKDOCS_2_WARNING=true build/docs_venv/bin/mkdocs build -q -f build/docs_site/mkdocs.yml
    say "build/docs/index.html: $(find build/docs -name '*.html' | wc -l) pages"
}

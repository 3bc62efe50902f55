# ./build.sh check [name...] format, layers, generated files, symbols, warnings, sizes; or those named
#
# The names are those of CHECKS at the end of tools/check/__main__.py; each prints what it holds.

# check [NAME...]: what all checks need is asked for when all run.
main() {
    # shellcheck disable=SC2086 # words are meant
    if [ $# = 0 ]; then needs $checks - spirv_cross lavapipe vulkan_header; fi
    exec python3 tools/check "$@"
}

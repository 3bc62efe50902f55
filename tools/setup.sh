# ./build.sh setup           install the packages of all commands; optional, as each command names
#                            missing ones and asks; setup platforms: those of platforms;
#                            setup vendors: compilers of other vendors' GPUs, for tools/check/vendors
#
# setup packages: nothing but packages. setup platforms NAME...: those of some platforms.

# main [packages | vendors | platforms [NAME...]]: who calls it has agreed. packages: nothing but these.
main() {
    may_install=yes
    if [ "${1:-}" = vendors ]; then
        setup_vendors
        return 0
    fi
    if [ "${1:-}" = platforms ]; then
        shift
        setup_platforms "$@"
        return 0
    fi
    # shellcheck disable=SC2086 # words are meant
    needs $checks - spirv_cross $tests_optional clang_runtime
    if [ "${1:-}" = packages ]; then return 0; fi
    setup_interop
    (data) || say 'without Fashion-MNIST the tests that train on it skip'
}

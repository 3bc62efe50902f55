# ./build.sh platforms       compile and run for other platforms: Windows under wine, the web, WASI,
#                            other CPUs under QEMU, musl; all: also those that take minutes to
#                            compile; or names; docs/platforms.md

main() {
    needs python
    header
    # Without it the training on Fashion-MNIST skips.
    if [ -e "$data_package" ]; then (data); fi
    exec sh tests/scripts/platforms.sh "$@"
}

# ./build.sh build           the header, the examples, the tests and the tools

main() {
    needs compiler - vulkan_header openssl zlib png jpeg
    build
    compile build/dtbench tools/bench/dtbench.c # tests run without it
}

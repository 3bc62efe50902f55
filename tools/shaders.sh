# ./build.sh shaders         compile shaders/ into src/backend/vulkan/shader_table.h

main() {
    needs python glslang spirv
    python3 tools/generate/shaders
    header
}

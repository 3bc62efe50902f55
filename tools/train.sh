# ./build.sh train [args]    build, get Fashion-MNIST and train on it; args go to the program;
#                            --model cnn or --model resnet: a convolutional network;
#                            --devices cpu:2, --devices vulkan:0,vulkan:1,cpu: several devices, with
#                            --batch-slices 8 the same bits from any number of them; as processes:
#                            build/dtrun -n 4 build/fashion_mnist, or mpirun, srun, torchrun
#
# --data DIR takes the four IDX files from there. Once it is built, build/fashion_mnist --help says what
# else the program takes.

# --model mlp is the first example's network, the others are the second's.
main() {
    example=fashion_mnist folder='--data build/data' left=$#
    while [ "$left" -gt 0 ]; do
        word=$1
        shift
        left=$((left - 1))
        case "$word ${1-}" in
        '--model mlp')
            shift
            left=$((left - 1))
            continue
            ;;
        '--model '*) example=fashion_mnist_conv ;;
        '--data '*) folder= ;;
        esac
        set -- "$@" "$word"
    done
    if [ -z "$folder" ]; then needs compiler; else needs_data compiler; fi
    header
    build_library
    compile build/dtrun tools/dtrun.c # which the help names
    linked examples/$example.c
    # shellcheck disable=SC2086 # words are meant
    exec build/$example $folder "$@"
}

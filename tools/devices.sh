# ./build.sh devices         list the devices that dtrain finds

main() { information "$@"; }

# information [plan] WORD...: of devices, or of a training step.
information() {
    needs compiler
    header
    fresh_flags
    compile build/dtinfo tools/view/dtinfo.c
    exec build/dtinfo "$@"
}

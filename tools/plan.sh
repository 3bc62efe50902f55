# ./build.sh plan [options]  what each device does in a training step, --svg FILE: drawn

. tools/devices.sh # whose program this is

main() { information plan "$@"; }

more_help() { main --help; }

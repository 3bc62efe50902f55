# ./build.sh clean           remove build/

main() { rm -rf build; }

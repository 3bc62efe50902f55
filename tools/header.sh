# ./build.sh header          write dtrain.h and api.json from src/

main() {
    needs python
    header
}

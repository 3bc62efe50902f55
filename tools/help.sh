# ./build.sh help            this text

# The first paragraph of each command's file, and what all commands take.
main() {
    for command in $commands; do sed -n '/^# /!q; s/^# //p' "tools/$command.sh"; done
    cat <<'END'

--yes                      install the command's packages without asking (apt, as root or by sudo),
                           as in CI (CI=true); --no-install: neither install nor ask
--sanitize address|thread  test: the test program under ASan and UBSan, or under TSan (by Clang if CC is unset)
CC=clang CFLAGS=-O3        before ./build.sh: another compiler, other flags
--help                     after a command: all about it
END
}

# What a newcomer needs.
brief() {
    cat <<'END'
./build.sh train          build an example and train it on Fashion-MNIST, in seconds
./build.sh devices        list the devices that dtrain finds
./build.sh build          build the examples, the tests and the tools, into build/
./build.sh test NAME      run the tests whose names contain NAME; without NAME all of them
./build.sh check          check style, layers, generated files, warnings and sizes
./build.sh header         write dtrain.h and api.json from src/
./build.sh docs           write the generated pages, and HTML of all pages with a search
./build.sh install        install dtrain.h, dtrain.pc and dtrun below /usr/local
./build.sh help           list all commands; ./build.sh COMMAND --help explains one
A command first names the packages that it misses; --yes installs them.
docs/guide/first-hour.md is where to begin.
END
}

# ./build.sh text [args]     the same for a text: build/char_gpt learns the Jargon File (from Debian's package
#                            jargon-text) or --data FILE, and continues it
#
# Once it is built, build/char_gpt --help says what else the program takes.

main() {
    needs compiler
    case " $* " in *" --data "*) ;; *) text_data ;; esac
    header
    build_library
    linked examples/char_gpt.c
    exec build/char_gpt "$@"
}

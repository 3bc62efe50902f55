/* The width of a stream's terminal. */

/* Columns; 0: not a terminal, or not known. */
static int dti_terminal_columns(FILE *file) {
#ifdef _WIN32
    CONSOLE_SCREEN_BUFFER_INFO info;
    if (!GetConsoleScreenBufferInfo((HANDLE)_get_osfhandle(_fileno(file)), &info))
        return 0;
    return info.srWindow.Right - info.srWindow.Left + 1;
#elif DTI_POSIX && defined TIOCGWINSZ
    struct winsize size = {0};
    const int descriptor = fileno(file);
    if (descriptor < 0 || !isatty(descriptor))
        return 0;
    return ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 1 ? size.ws_col : 79;
#else
    return 0;
#endif
}

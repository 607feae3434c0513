/* The interpreter of the binary: Python in isolated mode, whatever the user's PYTHON* variables say, for it and its children. */
#include <Python.h>
#include <string.h>

int main(int argc, char **argv) {
    char **arguments = calloc(argc + 2, sizeof *arguments);
    arguments[0] = argv[0];
    arguments[1] = "-I";
    memcpy(arguments + 2, argv + 1, argc * sizeof *argv);
    return Py_BytesMain(argc + 1, arguments);
}

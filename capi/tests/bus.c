/* Opens a model, and then reads a missing page of another mapped file: bus MODEL FILE. The program's
 * own handler of SIGBUS is installed for one signal. It runs once, and the next SIGBUS ends the
 * program. */
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <ixc.h>

static void report(int signal) {
    (void)signal;
    if (write(STDOUT_FILENO, "own handler\n", 12) != 12) _exit(EXIT_FAILURE);
}

int main(int count, char **arguments) {
    if (count != 3) return EXIT_FAILURE;
    struct sigaction action = {.sa_handler = report, .sa_flags = SA_RESETHAND};
    if (sigaction(SIGBUS, &action, NULL) != 0) return EXIT_FAILURE;
    ixc_model_options options = {.size = sizeof options, .threads = 1};
    ixc_model *model;
    if (ixc_model_open(arguments[1], &options, &model) != IXC_OK) return EXIT_FAILURE;
    int file = open(arguments[2], O_RDWR);
    volatile char *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, file, 0);
    if (page == MAP_FAILED || ftruncate(file, 0) != 0) return EXIT_FAILURE;
    return page[0];
}

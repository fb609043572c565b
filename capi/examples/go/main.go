// Continues a text, and prints it while it is generated: go run . MODEL PROMPT [TARGET].
package main

/*
#cgo pkg-config: ixc
#include <stdlib.h>
#include <ixc.h>

int printPiece(void *user, ixc_piece *piece);
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

//export printPiece
func printPiece(_ unsafe.Pointer, piece *C.ixc_piece) C.int {
	os.Stdout.Write(C.GoBytes(unsafe.Pointer(piece.text), C.int(piece.bytes)))
	return 0
}

// check ends the program if a call failed. It reads the error of this thread.
func check(what string, status C.ixc_status) {
	if status != C.IXC_OK {
		fmt.Fprintf(os.Stderr, "%s: %s\n", what, C.GoString(C.ixc_error()))
		os.Exit(1)
	}
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: go run . MODEL PROMPT [TARGET]")
		os.Exit(2)
	}
	// ixc_error returns the error of a thread, and a goroutine may move to another thread.
	runtime.LockOSThread()
	path, text := C.CString(os.Args[1]), C.CString(os.Args[2])
	defer C.free(unsafe.Pointer(path))
	defer C.free(unsafe.Pointer(text))

	options := C.ixc_model_options{size: C.sizeof_ixc_model_options}
	if len(os.Args) > 3 {
		options.target = C.CString(os.Args[3])
		defer C.free(unsafe.Pointer(options.target))
	}
	var model *C.ixc_model
	check("open", C.ixc_model_open(path, &options, &model))
	defer C.ixc_model_close(model)

	var count C.size_t
	flags := C.uint32_t(C.IXC_ADD_BOS | C.IXC_PARSE_SPECIAL)
	check("tokenize", C.ixc_tokenize(model, text, C.IXC_TERMINATED, flags, nil, 0, &count))
	prompt := make([]C.uint32_t, count)
	check("tokenize", C.ixc_tokenize(model, text, C.IXC_TERMINATED, flags, &prompt[0], count, &count))

	var sampler *C.ixc_sampler
	check("sampler", C.ixc_sampler_new(&sampler))
	defer C.ixc_sampler_free(sampler)
	temperature := C.CString("temperature")
	defer C.free(unsafe.Pointer(temperature))
	check("temperature", C.ixc_sampler_set(sampler, temperature, 0))

	how := C.ixc_generate_options{size: C.sizeof_ixc_generate_options, sampler: sampler, max_tokens: 24}
	how.on_text = C.ixc_text_callback(C.printPiece)
	var generation *C.ixc_generation
	fmt.Print(os.Args[2])
	check("generate", C.ixc_generate(model, &prompt[0], count, &how, &generation))
	fmt.Println()
	C.ixc_generation_free(generation)
}

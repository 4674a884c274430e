// clustertool holds the small programs that a test cluster needs and that are
// written in Go because they use Kubernetes' own Go types or formats.
//
//	clustertool certs|mkimage|golden [flags]
package main

import (
	"fmt"
	"os"
)

var commands = map[string]func(args []string) error{
	"certs":   certs,
	"mkimage": mkimage,
	"golden":  golden,
}

func main() {
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: clustertool certs|mkimage|golden [flags]")
		os.Exit(2)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "clustertool %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// Applies CDI devices to the config.json of an OCI bundle, as containerd does.
//
//	inject BUNDLE SPECDIR[,SPECDIR] DEVICE...
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "usage: inject BUNDLE SPECDIR[,SPECDIR] DEVICE...")
		os.Exit(2)
	}
	file := filepath.Join(os.Args[1], "config.json")
	if err := inject(file, strings.Split(os.Args[2], ","), os.Args[3:]); err != nil {
		fmt.Fprintf(os.Stderr, "inject: %v\n", err)
		os.Exit(1)
	}
}

func inject(file string, specDirs, devices []string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	config := &specs.Spec{}
	if err := json.Unmarshal(text, config); err != nil {
		return fmt.Errorf("read %s: %w", file, err)
	}
	cache, err := cdi.NewCache(cdi.WithSpecDirs(specDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return err
	}
	if _, err := cache.InjectDevices(config, devices...); err != nil {
		return fmt.Errorf("%w (%v)", err, cache.GetErrors())
	}
	text, err = json.MarshalIndent(config, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, text, 0o644)
}

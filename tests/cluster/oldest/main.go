// kubebox of the oldest Kubernetes: as ../kubernetes/cmd/kubebox, without etcd, which is the
// newest's, and with what components were called then.
//
//	kubebox apiserver|controller-manager|scheduler|kubelet|kubectl ...
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"          // JSON log format
	_ "k8s.io/component-base/metrics/prometheus/clientgo" // client-go metrics
	_ "k8s.io/component-base/metrics/prometheus/version"  // build info metric
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	kcm "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: kubebox apiserver|controller-manager|scheduler|kubelet|kubectl [flags]")
		os.Exit(2)
	}
	name := filepath.Base(os.Args[1])
	os.Args = os.Args[1:]

	var cmd *cobra.Command
	switch name {
	case "apiserver", "kube-apiserver":
		cmd = apiserver.NewAPIServerCommand()
	case "controller-manager", "kube-controller-manager":
		cmd = kcm.NewControllerManagerCommand()
	case "scheduler", "kube-scheduler":
		cmd = scheduler.NewSchedulerCommand()
	case "kubelet":
		cmd = kubelet.NewKubeletCommand()
	case "kubectl":
		cmd = kubectl.NewDefaultKubectlCommand()
		if err := cli.RunNoErrOutput(cmd); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	default:
		fmt.Fprintln(os.Stderr, "kubebox: no such component:", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(cmd))
}

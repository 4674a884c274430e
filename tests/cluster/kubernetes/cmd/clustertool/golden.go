package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	checkpoint "k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/checkpoint"
)

// golden writes the wire forms that our Rust types must read and write, as the
// Go types encode them: one JSON file for each message.
func golden(args []string) error {
	fs := flag.NewFlagSet("golden", flag.ExitOnError)
	dir := fs.String("dir", "golden", "output directory")
	fs.Parse(args)
	if err := os.MkdirAll(*dir, 0o755); err != nil {
		return err
	}
	files, err := messages()
	if err != nil {
		return err
	}
	for name, v := range files {
		var out []byte
		if raw, ok := v.([]byte); ok {
			out = raw
		} else if out, err = json.MarshalIndent(v, "", "  "); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(*dir, name), append(out, '\n'), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func messages() (map[string]any, error) {
	names := []string{"n1", "n2"}
	none := []string{}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default", UID: "u-1"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "i"}}}}
	resp := &pluginapi.ContainerAllocateResponse{CdiDevices: []*pluginapi.CDIDevice{{Name: "aliquot.dev/vgpu=GPU-a-0-0123456789abcdef"}}}
	bytes, err := proto.Marshal(resp)
	if err != nil {
		return nil, err
	}
	cp, err := checkpoint.New([]checkpoint.PodDevicesEntry{{
		PodUID: "u-1", ContainerName: "main", ResourceName: "nvidia.com/gpu",
		DeviceIDs: checkpoint.DevicesPerNUMA{-1: {"GPU-a::0"}}, AllocResp: bytes,
	}}, map[string][]string{"nvidia.com/gpu": {"GPU-a::0", "GPU-a::1"}}).MarshalCheckpoint()
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"extender-args-names.json":     extenderv1.ExtenderArgs{Pod: pod, NodeNames: &names},
		"extender-filter-fits.json":    extenderv1.ExtenderFilterResult{NodeNames: &names},
		"extender-filter-refused.json": extenderv1.ExtenderFilterResult{NodeNames: &none, FailedAndUnresolvableNodes: extenderv1.FailedNodesMap{"n1": "0/2 nodes fit"}},
		"extender-filter-error.json":   extenderv1.ExtenderFilterResult{Error: "not ready"},
		"extender-priorities.json":     extenderv1.HostPriorityList{{Host: "n1", Score: 10}, {Host: "n2", Score: 0}},
		"extender-binding-args.json":   extenderv1.ExtenderBindingArgs{PodName: "p", PodNamespace: "default", PodUID: "u-1", Node: "n1"},
		"extender-preemption-args-meta.json": extenderv1.ExtenderPreemptionArgs{Pod: pod,
			NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{"n1": {Pods: []*extenderv1.MetaPod{{UID: "u-2"}}, NumPDBViolations: 1}}},
		"extender-preemption-result.json": extenderv1.ExtenderPreemptionResult{
			NodeNameToMetaVictims: map[string]*extenderv1.MetaVictims{"n1": {Pods: []*extenderv1.MetaPod{{UID: "u-2"}, {UID: "u-3"}}}}},
		"extender-binding-result.json": extenderv1.ExtenderBindingResult{Error: "no room"},
		"kubelet-checkpoint.json":      cp,
	}, nil
}

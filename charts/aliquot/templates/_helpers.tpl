{{/* The values, with HAMi's keys under this chart's names. */}}
{{- define "aliquot.values" -}}
{{- $v := .Values | toYaml | fromYaml -}}
{{- /* helm renders no dependency whose condition is false. */ -}}
{{- if eq (toString $v.enabled) "false" -}}
{{- fail "enabled is false, expected: true or nothing, because only the condition of a parent chart's dependency turns this chart off" -}}
{{- end -}}
{{- if eq (toString (dig "scheduler" "forceOverwriteDefaultScheduler" true $v)) "false" -}}
{{- $_ := set $v.webhook "replaceSchedulers" (without $v.webhook.replaceSchedulers "default-scheduler") -}}
{{- end -}}
{{- if hasKey $v.devicePlugin "pluginPath" -}}
{{- $_ := set $v.devicePlugin "kubeletDir" (dir (trimSuffix "/" $v.devicePlugin.pluginPath)) -}}
{{- end -}}
{{- range $part := list $v.scheduler $v.devicePlugin -}}
{{- range $key, $ours := dict "podAnnotations" "annotations" "nodeSelector" "nodeSelector" "tolerations" "tolerations" -}}
{{- if hasKey $part $key -}}
{{- $_ := set $part.pod $ours (get $part $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if dig "scheduler" "certManager" "enabled" false $v -}}
{{- $_ := set $v.webhook.certManager "enabled" true -}}
{{- end -}}
{{- if dig "prometheus" "enabled" false $v -}}
{{- $_ := set $v.monitoring "enabled" true -}}
{{- end -}}
{{- if has (default "" $v.devicePlugin.nvidiaDriverRoot) (list "" "auto") -}}
{{- $_ := set $v.devicePlugin "nvidiaDriverRoot" "" -}}
{{- end -}}
{{- $names := list -}}
{{- range $v.global.imagePullSecrets -}}
{{- $names = append $names (kindIs "map" . | ternary . (dict "name" .)) -}}
{{- end -}}
{{- $_ := set $v.global "imagePullSecrets" $names -}}
{{- toYaml $v -}}
{{- end -}}

{{/* Labels of every object; takes the root and a component. */}}
{{- define "aliquot.labels" -}}
{{ include "aliquot.selector" . }}
app.kubernetes.io/name: aliquot
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end -}}

{{/* What selects pods, unchanged by an upgrade: there is one Aliquot in a cluster. */}}
{{- define "aliquot.selector" -}}
app.kubernetes.io/part-of: aliquot
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* Aliquot's image. */}}
{{- define "aliquot.image" -}}
{{- if not .v.image.repository -}}
{{- fail "image.repository is empty, expected: the repository of an image that you built (docs/guides/install.md), because only the chart of a release names an image of its own" -}}
{{- end -}}
{{- with default .v.image.registry .v.global.imageRegistry }}{{ . }}/{{ end }}{{ .v.image.repository }}:{{ default .root.Chart.AppVersion .v.image.tag }}
{{- end -}}

{{/* kube-scheduler's image: of the cluster's version, without a vendor's suffix; of the minor version's
first release if it names no patch. */}}
{{- define "aliquot.kubeSchedulerImage" -}}
{{- $image := .v.scheduler.kubeScheduler.image -}}
{{- with default $image.registry .v.global.imageRegistry }}{{ . }}/{{ end }}{{ $image.repository }}:{{ include "aliquot.kubeSchedulerTag" . }}
{{- end -}}

{{- define "aliquot.kubeSchedulerTag" -}}
{{- coalesce .v.scheduler.kubeScheduler.imageTag .v.scheduler.kubeScheduler.image.tag (include "aliquot.clusterVersion" .) -}}
{{- end -}}

{{- define "aliquot.clusterVersion" -}}
{{- $cluster := .root.Capabilities.KubeVersion -}}
{{- $first := printf "v%s.%s.0" $cluster.Major (regexFind "^[0-9]+" $cluster.Minor) -}}
{{- regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" $cluster.Version | default $first -}}
{{- end -}}

{{/* kube-scheduler's health path: /livez and /readyz exist since 1.31. A tag that is no
version counts as the cluster's version. */}}
{{- define "aliquot.kubeSchedulerHealth" -}}
{{- $tag := include "aliquot.kubeSchedulerTag" .me | regexFind "^v?[0-9]+[.][0-9]+[.][0-9]+" -}}
{{- $version := default (include "aliquot.clusterVersion" .me) $tag -}}
{{- ternary "/healthz" .since (semverCompare "<1.31.0-0" $version) -}}
{{- end -}}

{{/* Flags that scheduler and webhook share. */}}
{{- define "aliquot.requestFlags" -}}
- --scheduler-name={{ .schedulerName }}
- --default-mem={{ int64 .scheduler.defaultMem }}
- --default-cores={{ int64 .scheduler.defaultCores }}
- --default-gpu-num={{ int64 .scheduler.defaultGPUNum }}
- --bare-gpu={{ .compat.bareGpu }}
- --resource-name={{ .resourceName }}
- --resource-mem={{ .resourceMem }}
- --resource-mem-percentage={{ .resourceMemPercentage }}
- --resource-cores={{ .resourceCores }}
- --resource-priority={{ .resourcePriority }}
{{- with .extraResources }}
- --extra-resources={{ join "," . }}
{{- end }}
{{- end -}}

{{- define "aliquot.logFlags" -}}
- --log-format={{ .log.format }}
- {{ printf "--log=%s" .log.filter | quote }}
{{- end -}}

{{/* Profiles as they were written: helm parses the key `on` as a boolean. */}}
{{- define "aliquot.profiles" -}}
{{- $config := . | toYaml | fromYaml -}}
{{- range $profile := $config.profiles -}}
{{- if kindIs "map" $profile -}}
{{- range $mode := append (get $profile "gpus" | default list) (get $profile "rest") -}}
{{- if kindIs "map" $mode -}}
{{- range $slice := get $mode "layout" | default list -}}
{{- if and (kindIs "map" $slice) (hasKey $slice "true") -}}
{{- $_ := set $slice "on" (get $slice "true") -}}
{{- $_ := unset $slice "true" -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* Directories of the agent and the container runtime that no pod with a share may mount. */}}
{{- define "aliquot.agentPaths" -}}
{{- $paths := list "/run/aliquot" .stateDir .kubeletDir .cdiDir "/etc/cdi" -}}
{{- with .execDir }}{{ $paths = append $paths . }}{{ end -}}
{{- with .runtimeConfig }}{{ $paths = append $paths (dir .) }}{{ end -}}
{{- with .nvidiaDriverRoot }}{{ if ne . "/" }}{{ $paths = append $paths . }}{{ end }}{{ end -}}
{{- $paths | uniq | join "," -}}
{{- end -}}

{{/* The host path that is mounted for the driver's files: the parent of their root, because a driver
container mounts the root again when it restarts, and may do so after the agent's start; / itself. */}}
{{- define "aliquot.driverMount" -}}
{{- $parent := dir (clean .) -}}
{{- if eq $parent "/" -}}
path: {{ clean . }}
type: Directory
{{- else -}}
path: {{ $parent }}
type: DirectoryOrCreate
{{- end -}}
{{- end -}}

{{/* The driver's root in a container that has this mount at /driver-root. */}}
{{- define "aliquot.driverRoot" -}}
/driver-root{{ if ne (dir (clean .)) "/" }}/{{ base (clean .) }}{{ end }}
{{- end -}}

{{/* Metadata of pods; takes the value pod of their part, too. The chart's own labels select them. */}}
{{- define "aliquot.podMetadata" -}}
labels:
  {{- merge (include "aliquot.labels" . | fromYaml) (default dict .pod.labels) | toYaml | nindent 2 }}
{{- with merge (default dict .annotations) (default dict .pod.annotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where pods run, by the value pod of their part. */}}
{{- define "aliquot.placement" -}}
priorityClassName: {{ .priorityClassName | quote }}
{{- range $key, $value := pick . "affinity" "nodeSelector" "tolerations" }}
{{- with $value }}
{{ $key }}:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The same for the pods that have a node's driver open. */}}
{{- define "aliquot.nodePlacement" -}}
{{- $pod := merge (dict) .pod -}}
{{- $_ := set $pod "nodeSelector" (merge (dict) (default dict .nvidiaNodeSelector) (default dict .pod.nodeSelector)) -}}
{{- $_ := set $pod "affinity" (include "aliquot.driverAffinity" .pod | fromYaml) -}}
{{- /* The agent's own taint, of sickPods: drain; programs on healthy GPUs go on. */ -}}
{{- $drain := dict "key" "aliquot.dev/gpu-drain" "operator" "Exists" -}}
{{- $_ := set $pod "tolerations" (prepend (default list .pod.tolerations) $drain) -}}
{{ include "aliquot.placement" $pod }}
{{- end -}}

{{/* What the restricted Pod Security Standard requires of a pod and its containers. */}}
{{- define "aliquot.podSecurity" -}}
{{- $own := dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault") -}}
{{- if not .v.platform.openshift -}}
{{- $own = merge $own (dict "runAsUser" 65532 "runAsGroup" 65532) -}}
{{- end -}}
{{- mergeOverwrite $own (default dict .pod.securityContext) | toYaml -}}
{{- end -}}

{{- define "aliquot.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{/* Replicas on different nodes, where there are several. */}}
{{- define "aliquot.spread" -}}
- maxSkew: 1
  topologyKey: kubernetes.io/hostname
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "aliquot.selector" . | nindent 6 }}
{{- end -}}

{{/* Environment of the agent's containers. */}}
{{- define "aliquot.agentEnv" -}}
{{- $own := include "aliquot.ownAgentEnv" . -}}
{{- $names := list -}}
{{- range fromYamlArray $own }}{{ $names = append $names .name }}{{ end -}}
{{- range $i, $variable := .devicePlugin.env -}}
{{- if has $variable.name $names -}}
{{- fail (printf "devicePlugin.env[%d].name is %q, expected: another name than those that the chart sets itself (%s)" $i $variable.name (join ", " $names)) -}}
{{- end -}}
{{- end -}}
{{ $own }}
{{- with .devicePlugin.env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "aliquot.ownAgentEnv" -}}
- name: NODE_NAME
  valueFrom: {fieldRef: {fieldPath: spec.nodeName}}
# For NVIDIA's runtime, which mounts the driver's libraries: all GPUs, and permission to
# configure MIG. With a driver root it is asked for nothing: as the default runtime it would create no
# container until there is a driver, for which the agent waits itself.
- {name: NVIDIA_VISIBLE_DEVICES, value: {{ ternary "void" "all" (and (ne .devicePlugin.nvidiaDriverRoot "") (not .devicePlugin.runtimeClassName)) }}}
- {name: NVIDIA_DRIVER_CAPABILITIES, value: "compute,utility"}
- {name: NVIDIA_MIG_CONFIG_DEVICES, value: all}
{{- include "aliquot.apiServerEnv" . }}
{{- end -}}

{{/* The API server's address, if not its Service. */}}
{{- define "aliquot.apiServerEnv" -}}
{{- if .apiServer.host }}
- {name: KUBERNETES_SERVICE_HOST, value: {{ .apiServer.host | quote }}}
- {name: KUBERNETES_SERVICE_PORT, value: {{ int64 .apiServer.port | quote }}}
{{- end }}
{{- end -}}

{{/* Not empty if the values have a key at a path. */}}
{{- define "aliquot.isSet" -}}
{{- $at := dict "here" .in "there" true -}}
{{- range $key := splitList "." .path -}}
{{- if and $at.there (kindIs "map" $at.here) (hasKey $at.here $key) -}}
{{- $_ := set $at "here" (get $at.here $key) -}}
{{- else -}}
{{- $_ := set $at "there" false -}}
{{- end -}}
{{- end -}}
{{- if $at.there }}yes{{ end -}}
{{- end -}}

{{/* Runtime classes of NVIDIA's runtime, as a JSON list. */}}
{{- define "aliquot.nvidiaClasses" -}}
{{- concat (default list .webhook.nvidiaRuntimeClasses) (list .webhook.runtimeClassName .devicePlugin.runtimeClassName) | compact | uniq | toJson -}}
{{- end -}}

{{/* The namespaces whose objects the webhook reviews: not Aliquot's own, and none that an
administrator exempts by a label. */}}
{{- define "aliquot.reviewedNamespaces" -}}
- {key: hami.io/webhook, operator: NotIn, values: [ignore]}
- {key: aliquot.dev/webhook, operator: NotIn, values: [ignore]}
- {key: kubernetes.io/metadata.name, operator: NotIn, values: [{{ .Release.Namespace }}]}
{{- end -}}

{{/* CEL: two maps are equal, except for keys that meet a condition. */}}
{{- define "aliquot.sameExcept" -}}
{{ .now }}.all(key, {{ .except }} || (key in {{ .before }} && {{ .now }}[key] == {{ .before }}[key])) && {{ .before }}.all(key, {{ .except }} || key in {{ .now }})
{{- end -}}

{{/* The affinity of the pods that have a node's driver open: as their value pod says, and off nodes on
which NVIDIA's operators need the driver alone: the DaemonSet controller deletes a pod whose node no longer
matches. GPU Operator's driver manager and MIG manager set these labels (docs/guides/nodes.md). One of the
terms must match, so each has the chart's expressions. */}}
{{- define "aliquot.driverAffinity" -}}
{{- $affinity := default dict .affinity -}}
{{- $node := default dict $affinity.nodeAffinity -}}
{{- $own := list -}}
{{- range list "device-plugin" "operator-validator" "client" -}}
{{- $own = append $own (dict "key" (print "nvidia.com/gpu.deploy." .) "operator" "NotIn" "values" (list "paused-for-driver-upgrade" "paused-for-mig-change")) -}}
{{- end -}}
{{- $terms := list -}}
{{- range dig "requiredDuringSchedulingIgnoredDuringExecution" "nodeSelectorTerms" (list (dict)) $node -}}
{{- $terms = append $terms (merge (dict "matchExpressions" (concat (default list .matchExpressions) $own)) .) -}}
{{- end -}}
{{- $node = merge (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms)) $node -}}
{{- merge (dict "nodeAffinity" $node) $affinity | toYaml -}}
{{- end -}}

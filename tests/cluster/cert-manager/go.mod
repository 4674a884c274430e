module aliquot.dev/tests/cluster/cert-manager

go 1.26.0

tool github.com/cert-manager/cert-manager/controller-binary

require github.com/cert-manager/cert-manager v1.21.2

// The controller's command is a module of its own, in a folder of another name, without releases.
replace github.com/cert-manager/cert-manager/controller-binary => github.com/cert-manager/cert-manager/cmd/controller release-1.21

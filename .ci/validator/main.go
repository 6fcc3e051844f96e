// Command main validates bundles as the operator framework does, and prints each problem: see ../tool.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/operator-framework/api/pkg/manifests"
	"github.com/operator-framework/api/pkg/validation"
)

func main() {
	validators := validation.DefaultBundleValidators.WithValidators(
		validation.OperatorHubV2Validator, validation.StandardCapabilitiesValidator, validation.ObjectValidator, validation.GoodPracticesValidator)
	status := 0
	for _, dir := range os.Args[1:] {
		bundle, err := manifests.GetBundleFromDir(dir)
		if err != nil {
			panic(err)
		}
		for _, result := range validators.Validate(bundle.ObjectsToValidate()...) {
			for _, problem := range append(result.Errors, result.Warnings...) {
				// By its plural alone: a rule has no version.
				if !strings.Contains(problem.Error(), "APIs which were deprecated and removed in v1.25") {
					fmt.Println(dir, problem)
					status = 1
				}
			}
		}
	}
	os.Exit(status)
}

package main

import (
	"context"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/go-kit/log"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/discovery/kubernetes"
	"github.com/prometheus/prometheus/discovery/targetgroup"
)

// Pods come and go in bursts; each burst is written once.
const settle = 200 * time.Millisecond

type targets struct {
	Targets []string       `json:"targets"`
	Labels  model.LabelSet `json:"labels"`
}

// discover runs Prometheus's own Kubernetes discovery of pods and hands the result to Prometheus as a file: Debian
// builds Prometheus without it. Every label is as `kubernetes_sd_configs` gives it.
func discover() error {
	kubeconfig := flag.String("kubeconfig", "", "who asks the API server")
	output := flag.String("output", "", "the file to keep, in Prometheus's format of file_sd_configs")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer cancel()
	config := kubernetes.SDConfig{Role: kubernetes.RolePod, KubeConfig: *kubeconfig}
	discovery, err := kubernetes.New(log.NewLogfmtLogger(os.Stderr), &config)
	if err != nil {
		return err
	}
	changes := make(chan []*targetgroup.Group)
	go discovery.Run(ctx, changes)

	groups := map[string]*targetgroup.Group{}
	var due <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case changed := <-changes:
			for _, group := range changed {
				if groups[group.Source] = group; len(group.Targets) == 0 {
					delete(groups, group.Source)
				}
			}
			if due == nil {
				due = time.After(settle)
			}
		case <-due:
			due = nil
			if err := write(*output, groups); err != nil {
				return err
			}
		}
	}
}

// write replaces the file in one step. A group's own labels stand beside those of each of its targets.
func write(path string, groups map[string]*targetgroup.Group) error {
	all := []targets{}
	for _, source := range slices.Sorted(maps.Keys(groups)) {
		for _, target := range groups[source].Targets {
			labels := groups[source].Labels.Merge(target)
			address := string(labels[model.AddressLabel])
			delete(labels, model.AddressLabel)
			all = append(all, targets{[]string{address}, labels})
		}
	}
	content, err := json.Marshal(all)
	if err != nil {
		return err
	}
	partial := path + ".partial"
	if err := os.WriteFile(partial, content, 0o644); err != nil {
		return err
	}
	return os.Rename(partial, path)
}

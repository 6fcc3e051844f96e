// An operator with controller-runtime, for lens/tests/it: a Page gets a ConfigMap with its text. The variable BUG names its bug.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

var bug = os.Getenv("BUG")

type reconciler struct {
	client.Client
	live   client.Reader
	scaler client.Client
	once   sync.Once
}

func newPage() *unstructured.Unstructured {
	page := &unstructured.Unstructured{}
	page.SetGroupVersionKind(schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Page"})
	return page
}

func (r *reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	page := newPage()
	if err := r.Get(ctx, request.NamespacedName, page); err != nil || page.GetDeletionTimestamp() != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	text, _, _ := unstructured.NestedString(page.Object, "spec", "text")
	wanted := map[string]string{"text": text}
	if bug == "fights-for-a-field" {
		wanted["replicas"] = "1"
	}
	found := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: page.GetNamespace(), Name: page.GetName()}}
	result, err := controllerutil.CreateOrPatch(ctx, r.Client, found, func() error {
		found.Data = wanted
		if bug == "stamps-its-child" {
			times, _ := strconv.Atoi(found.Annotations["times"])
			found.Annotations = map[string]string{"times": strconv.Itoa(times + 1)}
		}
		return controllerutil.SetControllerReference(page, found, r.Scheme())
	})
	if err != nil {
		// If it exists, its event is on the way.
		return ctrl.Result{}, client.IgnoreAlreadyExists(err)
	}
	if result == controllerutil.OperationResultNone {
		if err := r.misbehave(ctx, page, found); err != nil {
			return ctrl.Result{}, err
		}
	}
	before := page.DeepCopy()
	checks, _, _ := unstructured.NestedInt64(page.Object, "status", "checks")
	status := map[string]any{"phase": "Ready"}
	if bug == "stamps-its-status" {
		status["checks"] = checks + 1
	}
	page.Object["status"] = status
	if old, _, _ := unstructured.NestedMap(before.Object, "status"); fmt.Sprint(old) == fmt.Sprint(status) {
		return ctrl.Result{}, nil
	}
	return ctrl.Result{}, r.Status().Patch(ctx, page, client.MergeFrom(before))
}

// What it does when there is nothing to do.
func (r *reconciler) misbehave(ctx context.Context, page *unstructured.Unstructured, found *corev1.ConfigMap) error {
	before := found.DeepCopy()
	switch bug {
	case "fights-for-a-field":
		found.Data["replicas"] = "3"
		return r.scaler.Patch(ctx, found, client.MergeFrom(before))
	case "drops-a-label":
		if found.Labels != nil {
			fresh := &corev1.ConfigMap{Data: found.Data}
			fresh.Namespace, fresh.Name, fresh.OwnerReferences = found.Namespace, found.Name, found.OwnerReferences
			return r.Update(ctx, fresh)
		}
		var err error
		r.once.Do(func() {
			found.Labels = map[string]string{"team": "web"}
			err = r.scaler.Patch(ctx, found, client.MergeFrom(before))
		})
		return err
	case "never-takes-the-answer":
		r.once.Do(func() {
			for times := range int64(6) {
				stale := page.DeepCopy()
				stale.Object["status"] = map[string]any{"phase": "Ready", "checks": times}
				_ = r.Status().Update(ctx, stale)
			}
		})
	case "has-no-index":
		for number := range 11 {
			labels := client.MatchingLabels{"page": fmt.Sprintf("%s-%d", page.GetName(), number)}
			if err := r.live.List(ctx, &corev1.ConfigMapList{}, client.InNamespace("default"), labels); err != nil {
				return err
			}
		}
	case "keeps-its-finalizer":
		if controllerutil.AddFinalizer(page, "example.com/page") {
			if err := r.Update(ctx, page); err != nil {
				return err
			}
			return r.scaler.Delete(ctx, page)
		}
	}
	return nil
}

// Without an informer, which opens each watch again.
func watchOnce(ctx context.Context, config *rest.Config) error {
	watcher, err := client.NewWithWatch(config, client.Options{})
	if err != nil {
		return err
	}
	secs := int64(1)
	options := &client.ListOptions{Raw: &metav1.ListOptions{AllowWatchBookmarks: true, TimeoutSeconds: &secs}}
	events, err := watcher.Watch(ctx, &corev1.ConfigMapList{}, client.InNamespace("default"), options)
	if err != nil {
		return err
	}
	go func() {
		for range events.ResultChan() {
		}
	}()
	return nil
}

func run(ctx context.Context) error {
	config := ctrl.GetConfigOrDie()
	config.UserAgent, config.QPS = "pages", -1
	other := rest.CopyConfig(config)
	other.UserAgent = "scaler"
	scaler, err := client.New(other, client.Options{})
	if err != nil {
		return err
	}
	options := ctrl.Options{Metrics: server.Options{BindAddress: "0"}}
	options.Cache.DefaultNamespaces = map[string]cache.Config{"default": {}}
	if bug == "opens-a-watch-once" {
		options.Client.Cache = &client.CacheOptions{DisableFor: []client.Object{&corev1.ConfigMap{}}}
		if err := watchOnce(ctx, config); err != nil {
			return err
		}
	}
	manager, err := ctrl.NewManager(config, options)
	if err != nil {
		return err
	}
	builder := ctrl.NewControllerManagedBy(manager).Named("pages").For(newPage())
	if bug != "opens-a-watch-once" {
		builder = builder.Owns(&corev1.ConfigMap{})
	}
	go func() {
		for bug == "polls" {
			_ = manager.GetAPIReader().List(ctx, &corev1.ConfigMapList{}, client.InNamespace("default"))
			time.Sleep(20 * time.Millisecond)
		}
	}()
	reconciler := &reconciler{Client: manager.GetClient(), live: manager.GetAPIReader(), scaler: scaler}
	if err := builder.Complete(reconciler); err != nil {
		return err
	}
	return manager.Start(ctx)
}

func main() {
	if err := run(ctrl.SetupSignalHandler()); err != nil {
		log.Fatal(err)
	}
}

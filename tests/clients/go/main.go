// The official client of Go, client-go: a list, writes, and an informer whose watches are cut. See ../install.
// With a namespace and a name as arguments: competes for that Lease until SIGTERM, and then gives it back.
package main

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

const selector = "for=go"

var events = make(chan string, 100)

// The next event is this one.
func expect(event string) {
	select {
	case seen := <-events:
		if seen != event {
			log.Fatalf("go: %s instead of %s", seen, event)
		}
	case <-time.After(time.Minute):
		log.Fatalf("go: no %s", event)
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		log.Fatalf("go: %v", err)
	}
	return value
}

func lead(client *kubernetes.Clientset, lease metav1.ObjectMeta) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	identity := resourcelock.ResourceLockConfig{Identity: "go"}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock:            &resourcelock.LeaseLock{LeaseMeta: lease, Client: client.CoordinationV1(), LockConfig: identity},
		ReleaseOnCancel: true,
		LeaseDuration:   15 * time.Second,
		RenewDeadline:   10 * time.Second,
		RetryPeriod:     2 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) { <-ctx.Done() },
			OnStoppedLeading: func() {},
		},
	})
}

func main() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	config := must(clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig())
	client := must(kubernetes.NewForConfig(config))
	if len(os.Args) == 3 {
		lead(client, metav1.ObjectMeta{Namespace: os.Args[1], Name: os.Args[2]})
		return
	}
	api := client.CoreV1().ConfigMaps("default")

	labels := map[string]string{"for": "go"}
	object := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "go", Labels: labels}, Data: map[string]string{"change": "0"}}
	must(api.Create(ctx, object, metav1.CreateOptions{}))
	list := must(api.List(ctx, metav1.ListOptions{LabelSelector: selector}))
	if len(list.Items) != 1 || list.Items[0].Name != "go" {
		log.Fatalf("go: listed %v", list.Items)
	}

	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace("default"),
		informers.WithTweakListOptions(func(options *metav1.ListOptions) { options.LabelSelector = selector }))
	change := func(object any) string { return object.(*v1.ConfigMap).Data["change"] }
	must(factory.Core().V1().ConfigMaps().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { events <- "add " + change(object) },
		UpdateFunc: func(_, object any) { events <- "update " + change(object) },
		DeleteFunc: func(object any) { events <- "delete " + change(object) },
	}))
	factory.Start(ctx.Done())
	expect("add 0")
	for _, number := range []string{"1", "2", "3", "4", "5"} {
		patch := []byte(`{"data": {"change": "` + number + `"}}`)
		must(api.Patch(ctx, "go", types.StrategicMergePatchType, patch, metav1.PatchOptions{}))
		expect("update " + number)
	}
	must(0, api.Delete(ctx, "go", metav1.DeleteOptions{}))
	expect("delete 5")
}

package v1

import (
	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	webappv1 "my.domain/guestbook/api/v1"
)

// The scaffolded specs are comments. Without a spec, the suite does not start. The message is the validating webhook's; the
// defaulting one only must not fail.
var _ = It("calls the webhooks", func() {
	guestbook := &webappv1.Guestbook{ObjectMeta: metav1.ObjectMeta{Name: "g", Namespace: "default"}}
	Expect(k8sClient.Create(ctx, guestbook)).To(MatchError(ContainSubstring("denied the request: no guestbooks here")))
})

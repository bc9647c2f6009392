// wsexec measures one exec over a WebSocket without kubectl: connect, run, wait for the status, N times.
//
//	wsexec KUBECONFIG NAMESPACE POD N COMMAND...    prints one duration in microseconds per line
package main

import (
	"bytes"
	"context"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "wsexec:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 5 {
		return fmt.Errorf("want KUBECONFIG NAMESPACE POD N COMMAND...")
	}
	config, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return err
	}
	repeats, err := strconv.Atoi(args[3])
	if err != nil {
		return err
	}
	for range repeats {
		started := time.Now()
		if err := once(config, args[1], args[2], args[4:]); err != nil {
			return err
		}
		fmt.Println(time.Since(started).Microseconds())
	}
	return nil
}

func once(config *rest.Config, namespace, pod string, command []string) error {
	query := url.Values{"stdout": {"true"}, "stderr": {"true"}, "command": command}
	address := fmt.Sprintf("%s/api/v1/namespaces/%s/pods/%s/exec?%s", config.Host, namespace, pod, query.Encode())
	executor, err := remotecommand.NewWebSocketExecutor(config, "GET", address)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var stdout, stderr bytes.Buffer
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &stdout, Stderr: &stderr})
}

package tritonmq

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"tritonmq/clients/go/pb"
)

// tunnelling is a tunnel that answers each request as a test says. It gives its address, and each request.
func tunnelling(t *testing.T, answer func(conn net.Conn, request string)) (string, chan string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	asked := make(chan string, 1_000)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				request, err := http.ReadRequest(bufio.NewReader(conn))
				if err != nil {
					return
				}
				said := request.Method + " " + request.Host
				asked <- said
				answer(conn, said)
			}()
		}
	}()
	return listener.Addr().String(), asked
}

// says answers with these bytes and ends the connection.
func says(text string) func(net.Conn, string) {
	return func(conn net.Conn, _ string) { _, _ = io.WriteString(conn, text) }
}

func dialVia(t *testing.T, via string, timeout time.Duration) (*Client, error) {
	t.Helper()
	client, err := Dial(t.Context(), "broker-1.hidden:7400", Options{Via: via, Timeout: timeout})
	if err == nil {
		t.Cleanup(client.Close)
	}
	return client, err
}

func TestEveryConnectionIsAskedForAtTheTunnelWhichResolvesTheName(t *testing.T) {
	h := &hostile{address: "broker-2.hidden:7400"} // the name that metadata tells
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pb.RegisterBrokerServer(server, h)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	via, asked := tunnelling(t, func(conn net.Conn, _ string) {
		broker, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			return
		}
		defer broker.Close()
		_, _ = io.WriteString(conn, "HTTP/1.1 200 Connection established\r\n\r\n")
		go func() { _, _ = io.Copy(broker, conn) }()
		_, _ = io.Copy(conn, broker)
	})
	for _, chosen := range []string{via, ""} {
		t.Setenv("TRITONMQ_VIA", via)
		t.Setenv("no_proxy", "hidden,127.0.0.1")
		t.Setenv("https_proxy", "http://127.0.0.1:9")
		client, err := dialVia(t, chosen, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.OpenQueue(t.Context(), "t", "q", QueueOptions{}); err != nil {
			t.Fatal(err)
		}
		for _, wanted := range []string{"CONNECT broker-1.hidden:7400", "CONNECT broker-2.hidden:7400"} {
			if said := <-asked; said != wanted {
				t.Errorf("the tunnel was asked %q, wanted %q", said, wanted)
			}
		}
	}
	if _, err := dialVia(t, Direct, time.Second); err == nil || len(asked) != 0 {
		t.Errorf("the tunnel was asked though it was not wanted: %v", err)
	}
}

func TestWhatIsWrongWithATunnelIsToldOfTheTunnel(t *testing.T) {
	silent := func(conn net.Conn, _ string) { _, _ = io.Copy(io.Discard, conn) }
	for name, c := range map[string]struct {
		answer func(net.Conn, string)
		told   string
	}{
		"forbidden": {says("HTTP/1.1 403 Forbidden\r\n\r\n"), "refuses broker-1.hidden:7400"},
		"password":  {says("HTTP/1.1 407 Who\r\n\r\n"), "wants a password"},
		"broker":    {says("HTTP/1.0 502 Bad Gateway\r\n\r\n"), "does not reach the broker at broker-1.hidden:7400"},
		"full":      {says("HTTP/1.1 503 Full\r\n\r\n"), "takes no more connections now"},
		"other":     {says("HTTP/1.1 404 No\r\n\r\n"), "with HTTP 404"},
		"no HTTP":   {says("220 \"mail\" at your service\r\n\r\n"), `it answered "2"`},
		"status":    {says("HTTP/1.1 2000 OK\r\n\r\n"), "it answered"},
		"endless":   {says("HTTP/1.1 200 OK\r\n" + strings.Repeat("a: b\r\n", 2_000)), "its answer does not end"},
		"cut":       {says("HTTP/1.1 200 OK\r\n"), "it ended the connection"},
		"silent":    {silent, "is silent"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			via, _ := tunnelling(t, c.answer)
			conn, err := connectThrough(t.Context(), via, "broker-1.hidden:7400")
			if conn != nil || err == nil || !strings.Contains(err.Error(), c.told) {
				t.Fatal(err)
			}
			if !strings.HasPrefix(err.Error(), tunnelWords+via) {
				t.Error("the tunnel is not named: ", err)
			}
		})
	}
}

func TestAnErrorNamesTheTunnelAndSaysThatNoBrokerWasAsked(t *testing.T) {
	via, _ := tunnelling(t, says("220 \"mail\"\r\n\r\n"))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := listener.Addr().String()
	_ = listener.Close()
	for _, wrong := range []string{via, nobody} {
		_, err := dialVia(t, wrong, 2*time.Second)
		if CodeOf(err) != pb.ErrorCode_UNREACHABLE ||
			!strings.Contains(err.Error(), "no broker was asked: the tunnel at "+wrong+" ") {
			t.Error(err)
		}
	}
}

func TestATunnelIsGivenUpWhenTheCallerEnds(t *testing.T) {
	began := make(chan struct{})
	via, _ := tunnelling(t, func(conn net.Conn, _ string) {
		close(began)
		_, _ = io.Copy(io.Discard, conn)
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-began
		cancel()
	}()
	if _, err := connectThrough(ctx, via, "b:1"); err == nil || ctx.Err() == nil {
		t.Error(err)
	}
}

func TestAnAddressThatWouldBeAnotherRequestIsNotAskedFor(t *testing.T) {
	via, asked := tunnelling(t, says(""))
	for _, address := range []string{"b:1 HTTP/1.1\r\nx: y", "b :1", "b\x00:1"} {
		if _, err := connectThrough(t.Context(), via, address); err == nil || len(asked) != 0 {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestAViaThatIsNoAddressIsRefused(t *testing.T) {
	for _, via := range []string{"gateway", "gateway:", "gateway:0", "gateway:70000", "http://gateway:1", ":7490"} {
		if _, err := dialVia(t, via, time.Second); CodeOf(err) != pb.ErrorCode_INVALID_SETTING {
			t.Errorf("%q: %v", via, err)
		}
	}
}

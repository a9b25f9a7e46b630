package tritonmq

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"

	"tritonmq/clients/go/pb"
)

const (
	tunnelHeadMax = 4 << 10 // bytes of a tunnel's answer to a request for a connection
	tunnelWords   = "the tunnel at "
	tunnelTimeout = 2 * time.Second // for the answer. `tritonmq proxy` gives a broker up sooner
)

// The request and its answer are written and read here, and not by gRPC's own dialling through proxies: what that one
// says of a proxy that refuses cannot be told from what a broker says.
var tunnelStatus = regexp.MustCompile(`^HTTP/1\.[01] ([1-9][0-9]{2})[ \r]`)

// tunnelFault finds, in what gRPC says of a connection that did not come about, what is wrong with the tunnel. Empty: it
// is something else.
func tunnelFault(said string) string {
	_, quoted, _ := strings.Cut(said, "connection error: desc = ")
	text, err := strconv.Unquote(quoted)
	if err != nil {
		return ""
	}
	at := strings.Index(text, tunnelWords)
	if at < 0 {
		return ""
	}
	return strings.TrimSuffix(text[at:], "\"")
}

// viaOf says through which tunnel brokers are reached: Options.Via, else TRITONMQ_VIA. Empty: through none.
func viaOf(options Options) (string, error) {
	via := strings.TrimSpace(or(options.Via, os.Getenv("TRITONMQ_VIA")))
	if via == "" || via == Direct {
		return "", nil
	}
	host, port, err := net.SplitHostPort(via)
	if number, wrong := strconv.ParseUint(port, 10, 16); err != nil || wrong != nil || number == 0 || host == "" {
		return "", newError(pb.ErrorCode_INVALID_SETTING,
			"Via: %q is not HOST:PORT: give the address of `tritonmq proxy`, e.g. gateway:7490", via)
	}
	return via, nil
}

// throughTunnel has each connection be asked for at the tunnel. It resolves the broker's name; the certificate that is
// checked is the broker's own.
func throughTunnel(via string) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		conn, err := connectThrough(ctx, via, address)
		if err != nil {
			return nil, err
		}
		return conn, nil
	})
}

func connectThrough(ctx context.Context, via, address string) (net.Conn, error) {
	if strings.ContainsFunc(address, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return nil, fmt.Errorf("a broker's address is %q, which no tunnel can be asked for", address)
	}
	ctx, cancel := context.WithTimeout(ctx, tunnelTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", via)
	if err != nil {
		return nil, fmt.Errorf(tunnelWords+"%s cannot be reached: %w. Start it (`tritonmq proxy`), or correct its "+
			"address (Via, TRITONMQ_VIA)", via, err)
	}
	until, _ := ctx.Deadline()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) }) // ctx may be cancelled before
	err = conn.SetDeadline(until)
	if err == nil {
		err = askTunnel(conn, via, address)
	}
	if stop() && err == nil {
		err = conn.SetDeadline(time.Time{})
	} else if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn, nil
}

// askTunnel asks for a connection to a broker, and returns nil once there is one.
func askTunnel(conn net.Conn, via, address string) error {
	if _, err := fmt.Fprintf(conn, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", address, address); err != nil {
		return noTunnel(via, err.Error())
	}
	var head []byte
	piece := make([]byte, 1) // what comes behind the head is the broker's, and may come at once
	for !bytes.Contains(head, []byte("\r\n\r\n")) {
		if len(head) == tunnelHeadMax {
			return noTunnel(via, "its answer does not end")
		}
		if known := min(len(head), 7); string(head[:known]) != "HTTP/1."[:known] {
			break
		}
		count, err := conn.Read(piece)
		head = append(head, piece[:count]...)
		if err == nil || count > 0 {
			continue
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf(tunnelWords+"%s is silent: something listens there, and has not answered the request for "+
				"%s. See whether it is an HTTP CONNECT tunnel (`tritonmq proxy`), and whether it has stopped", via, address)
		}
		return noTunnel(via, fmt.Sprintf("it ended the connection (%s)", err))
	}
	found := tunnelStatus.FindSubmatch(head)
	if found == nil {
		return noTunnel(via, fmt.Sprintf("it answered %q", head))
	}
	if status := string(found[1]); status != "200" {
		return tunnelRefusal(status, via, address)
	}
	return nil
}

// tunnelRefusal says what an answer other than 200 means.
func tunnelRefusal(status, via, address string) error {
	switch status {
	case "403":
		return fmt.Errorf(tunnelWords+"%s refuses %s: to it that is no address of a broker. Bootstrap addresses must be "+
			"those that brokers advertise (`tritonmq cluster status` shows them), and the tunnel's --bootstrap names the "+
			"same cluster. For clients with tokens the tunnel needs a token of its own (`tritonmq proxy --token-file`), and for "+
			"those with certificates a certificate", via, address)
	case "407":
		return fmt.Errorf(tunnelWords+"%s wants a password, and this client sends none: use one without", via)
	case "429", "503":
		return fmt.Errorf(tunnelWords+"%s takes no more connections now (HTTP %s): start another one, or raise its "+
			"--connections-max", via, status)
	case "502", "504":
		return fmt.Errorf(tunnelWords+"%s does not reach the broker at %s: is that broker alive?", via, address)
	}
	return noTunnel(via, fmt.Sprintf("it refused to connect %s with HTTP %s", address, status))
}

func noTunnel(via, what string) error {
	return fmt.Errorf(tunnelWords+"%s is none that speaks HTTP CONNECT: %s. Give the address of `tritonmq proxy`, or of "+
		"a proxy that allows CONNECT (Via, TRITONMQ_VIA)", via, what)
}

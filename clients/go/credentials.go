package tritonmq

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"tritonmq/clients/go/pb"
)

// credentialsOf says how brokers are dialled: in plain text where neither the options nor the environment name
// certificates.
func credentialsOf(options Options) ([]grpc.DialOption, error) {
	certs := or(options.Certs, os.Getenv("TRITONMQ_CERTS"))
	user := or(options.User, os.Getenv("TRITONMQ_USER"))
	token := or(options.TokenFile, os.Getenv("TRITONMQ_TOKEN_FILE"))
	if certs == "" {
		if token != "" {
			return nil, newError(pb.ErrorCode_INVALID_SETTING,
				"a token is sent over TLS alone: give Certs, a directory with ca.crt")
		}
		return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, nil
	}
	believed, err := os.ReadFile(filepath.Join(certs, "ca.crt"))
	if err != nil {
		return nil, newError(pb.ErrorCode_INVALID_SETTING, "Certs: %s", err)
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: x509.NewCertPool()}
	if !settings.RootCAs.AppendCertsFromPEM(believed) {
		return nil, newError(pb.ErrorCode_INVALID_SETTING, "Certs: %s holds no certificate", filepath.Join(certs, "ca.crt"))
	}
	if token != "" {
		return []grpc.DialOption{
			grpc.WithTransportCredentials(credentials.NewTLS(settings)), grpc.WithPerRPCCredentials(bearer(token)),
		}, nil
	}
	name := "client"
	if user != "" {
		name = "client." + user
	}
	stem := filepath.Join(certs, name)
	read := func() (*tls.Certificate, error) {
		found, err := tls.LoadX509KeyPair(stem+".crt", stem+".key")
		if err != nil {
			return nil, newError(pb.ErrorCode_INVALID_SETTING, "Certs: %s", err)
		}
		return &found, nil
	}
	if _, err := read(); err != nil {
		return nil, err
	}
	// Read again for each connection: certificates are replaced while programs run.
	settings.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	return []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(settings))}, nil
}

func or(given, otherwise string) string {
	if given != "" {
		return given
	}
	return otherwise
}

// bearer is the path of a file with a token.
type bearer string

// GetRequestMetadata reads the token, which may have been replaced.
func (path bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	token, err := os.ReadFile(string(path))
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + strings.TrimSpace(string(token))}, nil
}

// RequireTransportSecurity: a token is never sent in plain text.
func (bearer) RequireTransportSecurity() bool { return true }

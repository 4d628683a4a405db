// A server of Vault's transit engine: the engine itself, behind as much of Vault's HTTP API as our requests use.
//
// The engine is the one of HashiCorp Vault, as a module. The front is ours: it checks the token, turns a request
// into one of the engine, and answers with the status codes of Vault. Keys are in memory. There are no policies,
// no mounts and no audit.
//
//	transit HOST:PORT TOKEN
package main

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/vault/builtin/logical/transit"
	"github.com/hashicorp/vault/sdk/logical"
)

const mount = "/v1/transit/"

var operations = map[string]logical.Operation{
	http.MethodGet:    logical.ReadOperation,
	http.MethodPost:   logical.UpdateOperation,
	http.MethodPut:    logical.UpdateOperation,
	http.MethodDelete: logical.DeleteOperation,
}

type front struct {
	engine  logical.Backend
	storage logical.Storage
	token   string
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Vault-Token") != f.token {
		answer(w, http.StatusForbidden, "permission denied")
		return
	}
	operation, isKnown := operations[r.Method]
	if !isKnown || !strings.HasPrefix(r.URL.Path, mount) {
		answer(w, http.StatusNotFound, "no handler for route")
		return
	}
	request := &logical.Request{
		Operation: operation,
		Path:      strings.TrimPrefix(r.URL.Path, mount),
		Storage:   f.storage,
		Data:      map[string]interface{}{},
	}
	if operation == logical.UpdateOperation {
		if err := json.NewDecoder(r.Body).Decode(&request.Data); err != nil {
			answer(w, http.StatusBadRequest, "no JSON")
			return
		}
		// Vault's core asks this too: a write to what does not exist is a create, which may make a key.
		checked, exists, err := f.engine.HandleExistenceCheck(r.Context(), request)
		if err == nil && checked && !exists {
			request.Operation = logical.CreateOperation
		}
	}
	found, err := f.engine.HandleRequest(r.Context(), request)
	status, err := logical.RespondErrorCommon(request, found, err)
	switch {
	case status != 0 && err == nil: // a key that does not exist
		answer(w, status)
	case status != 0:
		answer(w, status, err.Error())
	case err != nil:
		answer(w, http.StatusInternalServerError, err.Error())
	case found == nil:
		w.WriteHeader(http.StatusNoContent)
	default:
		reply(w, http.StatusOK, map[string]interface{}{"data": found.Data, "warnings": found.Warnings})
	}
}

func answer(w http.ResponseWriter, status int, errs ...string) {
	reply(w, status, map[string]interface{}{"errors": errs})
}

func reply(w http.ResponseWriter, status int, body interface{}) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

func main() {
	storage := &logical.InmemStorage{}
	config := logical.TestBackendConfig()
	config.StorageView = storage
	config.Logger = hclog.NewNullLogger()
	engine, err := transit.Backend(context.Background(), config)
	if err != nil {
		log.Fatal(err)
	}
	// The SDK that is released apart from Vault refuses a path of this engine that we do not use.
	for _, path := range engine.Paths {
		if path.ExistenceCheck == nil {
			delete(path.Operations, logical.CreateOperation)
			delete(path.Callbacks, logical.CreateOperation)
		}
	}
	if err := engine.Setup(context.Background(), config); err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(os.Args[1], &front{engine: engine, storage: storage, token: os.Args[2]}))
}

{{- define "kvbudget.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* At most 40 characters, so that every suffix of ours still gives a valid label value and name. */ -}}
{{- define "kvbudget.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "kvbudget.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "kvbudget.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels that select pods: they must never change over upgrades. Call with (list . "component"). */ -}}
{{- define "kvbudget.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "kvbudget.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "kvbudget.labels" -}}
{{- $root := index . 0 -}}
{{ include "kvbudget.selector" . }}
app.kubernetes.io/part-of: kvbudget
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Labels of pods: no version in them, so that an upgrade replaces pods only where something of theirs changed.
Call with (list . "component" podLabels). The selector wins. */ -}}
{{- define "kvbudget.podLabels" -}}
{{- $root := index . 0 -}}
{{- $selector := include "kvbudget.selector" . | fromYaml -}}
{{- toYaml (merge $selector (dict "app.kubernetes.io/part-of" "kvbudget") (index . 2) $root.Values.commonLabels) -}}
{{- end -}}

{{- /* Reference of an image: (list . .Values.image). A digest wins over the tag. */ -}}
{{- define "kvbudget.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default $root.Chart.AppVersion $image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "kvbudget.webhookSecret" -}}
{{ include "kvbudget.fullname" . }}-webhook-cert
{{- end -}}

{{- /* Probes of both Deployments: alive is cheap, ready may wait for a slow moment of a busy node. */ -}}
{{- define "kvbudget.probes" -}}
startupProbe: {httpGet: {path: /healthz, port: health}, periodSeconds: 1, timeoutSeconds: 5, failureThreshold: 300}
livenessProbe: {httpGet: {path: /healthz, port: health}, periodSeconds: 10, timeoutSeconds: 5, failureThreshold: 3}
readinessProbe: {httpGet: {path: /readyz, port: health}, periodSeconds: 2, timeoutSeconds: 5}
{{- end -}}

{{- /* What both Deployments and the hook share in a pod spec: (list . .Values.operator). */ -}}
{{- define "kvbudget.scheduling" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $component.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end -}}

{{- /* The pod that makes dry-run creates until the webhook has answered one; the hook Job's and `helm test`'s. */ -}}
{{- define "kvbudget.verifyPod" -}}
restartPolicy: Never
enableServiceLinks: false
serviceAccountName: {{ include "kvbudget.fullname" . }}-verify
securityContext: {{- toYaml .Values.podSecurityContext | nindent 2 }}
{{- include "kvbudget.scheduling" (list . .Values.admission) | nindent 0 }}
containers:
  - name: verify
    image: {{ include "kvbudget.image" (list . .Values.image) }}
    imagePullPolicy: {{ .Values.image.pullPolicy }}
    args: [verify-webhook]
    env:
      - {name: POD_NAMESPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
      - {name: KVBUDGET_VERIFY_TIMEOUT_SECONDS, value: {{ .Values.verify.timeoutSeconds | quote }}}
    resources:
      requests: {cpu: 20m, memory: 96Mi}
      limits: {memory: 256Mi}
    securityContext: {{- toYaml .Values.securityContext | nindent 6 }}
    volumeMounts:
      - {name: tmp, mountPath: /tmp}
volumes:
  - {name: tmp, emptyDir: {}}
{{- end -}}
